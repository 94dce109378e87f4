"""`python -m launch`: the `rookery` command."""

from launch.cli.exec import main

if __name__ == "__main__":
    main()
