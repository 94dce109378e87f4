"""One policy learned by several processes: process group, rendezvous."""
