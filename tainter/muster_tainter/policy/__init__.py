"""What policy.yaml may say: rules, pools, budgets, proof, repair, sources; and the file itself."""
