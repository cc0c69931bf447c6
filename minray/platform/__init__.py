"""The seam between minray and the world: ``base`` defines the interface, the other files implement it for real."""
