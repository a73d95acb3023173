"""DeviceTaintRules: which ones a node needs, and writing them."""
