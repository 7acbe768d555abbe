"""The paper's Figure 5 as an interface: a client shows a state and a context, the server decides and may write."""
