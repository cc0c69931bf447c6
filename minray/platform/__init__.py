"""The seam between minray and the world: ``base`` says what is needed, the other files are its real side."""
