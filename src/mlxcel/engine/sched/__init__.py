"""The scheduler: rows, their queue and slots, the room they get, the plan of a step and what its results mean."""
