"""python -m selfens"""

from selfens.cli import main

main()
