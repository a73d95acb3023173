"""The agent of one node.

How a finding reaches the NodeHealth: checks/stream_check.py or snapshot_check.py passes what a check has found to
findings/ledger.py; checks/node_check.py logs and reports the changes; publish/change_signal.py wakes
publish/publisher.py, which gets the desired status from node_agent.py (findings/health_status.py) and writes it with
one PATCH.
"""
