"""BERT itself: text, model, tasks and training, without any cluster, tracker or server."""
