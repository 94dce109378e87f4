"""`python -m launch`: the `rookery` command."""

from launch.cli import main

if __name__ == "__main__":
    main(prog_name="rookery")
