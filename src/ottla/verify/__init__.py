"""The fault harness: clients with unique values, faults, a recorded history, and its judgement."""
