"""What Horovod's launcher shares with others."""
