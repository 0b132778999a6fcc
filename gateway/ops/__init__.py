"""The ops listener: health, metrics and the view of the fleet, for operators only."""
