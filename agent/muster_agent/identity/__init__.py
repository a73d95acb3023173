"""Who an agent is to other agents: a key and a certificate of its own, whose fingerprint its NodeHealth publishes."""
