"""``python -m phalanx`` is the ``phalanx`` command."""

from phalanx._command import main

main()
