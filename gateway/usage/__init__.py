"""Usage accounting: who has used what, counted, shared out and kept by month."""
