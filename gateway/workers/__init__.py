"""Several processes behind one port: the supervisor, its workers, and what they tell each other.

The supervisor is also the agent of this host: it alone probes the fleet and talks to operators.
Workers answer requests. With one worker none of this is used.
"""
