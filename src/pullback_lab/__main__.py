"""`python -m pullback_lab` is the command `pullback`."""

from .cli import main

if __name__ == "__main__":
    main()
