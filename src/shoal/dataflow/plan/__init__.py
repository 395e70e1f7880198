"""From what users wrote to what is run: schemas and types found and checked, rules applied, stages and edges cut."""
