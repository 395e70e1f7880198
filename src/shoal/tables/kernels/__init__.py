"""The compiled code of the tables. Everything here works on numbers, addresses and arrays; `shoal.tables` calls it.

`compiling` makes kernels and keeps their machine code, `access` reads and writes memory by address. The other modules
are layered: `index` finds rows, `rows` fills and reads them, `lookups`, `updates` and `sweeps` are what tables call.
"""
