"""The agent of one node.

The way of a finding: checks/stream_check.py, or snapshot_check.py, puts what a check has seen into findings/ledger.py;
checks/node_check.py logs and reports what that changed; publish/change_signal.py wakes publish/publisher.py, which asks
node_agent.py what the NodeHealth is to hold (findings/health_status.py) and writes it with one PATCH.
"""
