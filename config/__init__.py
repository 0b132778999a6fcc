"""What an operator may write, checked before anything starts."""
