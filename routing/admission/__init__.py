"""How much of a model servers have under way at a time, and whose turn it is when that is reached.

`limits` finds out how much each server takes, `queue` orders the requests that wait for room.
Waiting itself is `gateway.admission`'s affair.
"""
