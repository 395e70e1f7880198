"""The node agent: carries out intents on one machine, keeps them on disk, and reports."""
