"""The pods of the ledger: what it reads of them, why they ended, and the booking of their time."""
