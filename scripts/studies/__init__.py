"""The certification studies of Wicker, Patane, Laurenti and Kwiatkowska, run with sound bounds; see docs/studies."""
