"""The command line. Importing it loads nothing heavy: commands import what they need when they run."""
