"""The simulators' SDK: one class to connect a simulator to an actor."""
