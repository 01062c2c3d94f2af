"""What is to be run: a scenario on a ladder under some policies, read from files and checked, for any world."""
