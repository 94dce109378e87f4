"""Which distribution of the public index brings a module: the one place from which `pip install` is ever advised.

A module's name says nothing of its distribution, and a guess may be somebody's trap. So what is not in this table is
only said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import ConfigurationError

DISTRIBUTION_OF: Mapping[str, str] = {
    "Box2D": "gymnasium[box2d]",
    "OpenGL": "PyOpenGL",
    "PIL": "pillow",
    "PyFlyt": "PyFlyt",
    "_cffi_backend": "cffi",
    "ale_py": "ale-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "cffi": "cffi",
    "chess": "chess",
    "chex": "chex",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dm_control": "dm-control",
    "dm_env": "dm-env",
    "flappy_bird_gymnasium": "flappy-bird-gymnasium",
    "gymnasium": "gymnasium",
    "gym": "gym",
    "gymnasium_robotics": "gymnasium-robotics",
    "gymnax": "gymnax",
    "h5py": "h5py",
    "highway_env": "highway-env",
    "imageio": "imageio",
    "jax": "jax",
    "jaxmarl": "jaxmarl",
    "lbforaging": "lbforaging",
    "magent2": "magent2",
    "matplotlib": "matplotlib",
    "mettagrid": "mettagrid",
    "minari": "minari",
    "minatar": "MinAtar",
    "minigrid": "minigrid",
    "miniworld": "miniworld",
    "mo_gymnasium": "mo-gymnasium",
    "moviepy": "moviepy",
    "mpe2": "mpe2",
    "mujoco": "mujoco",
    "multi_agent_ale_py": "multi-agent-ale-py",
    "networkx": "networkx",
    "numba": "numba",
    "open_spiel": "open_spiel",
    "pandas": "pandas",
    "pettingzoo": "pettingzoo",
    "pybullet": "pybullet",
    "pygame": "pygame",
    "pyglet": "pyglet",
    "pymunk": "pymunk",
    "pyspiel": "open_spiel",
    "requests": "requests",
    "rlcard": "rlcard",
    "rware": "rware",
    "scipy": "scipy",
    "seaborn": "seaborn",
    "serial": "pyserial",
    "shimmy": "shimmy",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "supersuit": "SuperSuit",
    "torch": "torch",
    "tqdm": "tqdm",
    "vmas": "vmas",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
"""Module -> what pip installs it by."""


def not_installed(value: str, module: str, key: str = "environment.id", hint: str = "") -> ConfigurationError:
    """What to say where `value`, which `key` names, needs `module`; `hint` asks what else may be meant."""
    top = module.partition(".")[0]
    facts = {"value": value, "module": top, "hint": hint, "key": key}
    if top in DISTRIBUTION_OF and not hint:
        return ConfigurationError("package_missing", package=DISTRIBUTION_OF[top], **facts)
    return ConfigurationError("module_missing", **facts)


def missing_module(fault: BaseException) -> str:
    """The module whose absence is `fault` or its cause; empty where it is something else."""
    cause: BaseException | None = fault
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return cause.name
        cause = cause.__cause__
    return ""
