"""The models of policy.yaml (rules, pools, budgets, proof, repair, sources), and the file itself."""
