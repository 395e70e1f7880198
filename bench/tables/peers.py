"""Other programs that tables are measured beside or tested with, each in an environment of its own."""

from __future__ import annotations

from bench.peers import Peer

_TENSORFLOW = ("tensorflow-cpu==2.16.2", "numpy==1.26.4")

#: TensorFlow Recommenders Addons: the embedding tables of TensorFlow. It works with this version of TensorFlow alone.
TFRA = Peer(
    "tfra",
    (*_TENSORFLOW, "tensorflow-recommenders-addons==0.8.1", "tf-keras==2.16.0", "setuptools==75.8.0"),
    "tfra_step.py",
    optional=True,
)
#: Stock TensorFlow, which reads and writes the files of dumps.
TENSORFLOW_DUMPS = Peer("tensorflow", _TENSORFLOW, "tensorflow_dumps.py", optional=True)
#: The same, whose `parse_example` is measured.
TENSORFLOW_PARSING = Peer("tensorflow", _TENSORFLOW, "tensorflow_parsing.py", optional=True)
ALL = (TFRA, TENSORFLOW_PARSING)
