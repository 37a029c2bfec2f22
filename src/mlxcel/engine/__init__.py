"""Who runs when: one owner thread a model, and the scheduler that batches works on it. No tensors, no text, no HTTP.

``client`` is the only door; ``worker`` is the thread, ``generation`` the engine on it, ``sched`` its decisions.
"""
