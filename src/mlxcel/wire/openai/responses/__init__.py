"""The OpenAI Responses surface.

``items`` are what goes in and comes out; ``history`` turns them into messages; ``request`` is the body and its way to a
job; ``envelope`` and ``answer`` build the response object and its events; ``compaction`` the shortened histories.
"""
