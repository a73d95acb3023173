"""The goodput ledger: which accelerator-hours of the running cluster were work, and what the others were lost to."""
