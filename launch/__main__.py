"""`python -m launch`: the `rookery` command."""

from launch.entry import main

if __name__ == "__main__":
    main()
