"""Problems small enough to see all of: a curve with a gap, two classes on a line, two moons."""
