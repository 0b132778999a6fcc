"""Rate limits: which requests may go on now, over all processes and gateways.

`gate` says it to requests, `limiter` decides, `prepaid` spares the store most questions,
`held` keeps what is held there. What is counted, and how, is in `routing.limits` and
`routing.quota`.
"""
