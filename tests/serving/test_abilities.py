"""What a model is said to be able to do is what its routes do."""

from serving.abilities import reads_pairs, routes_of


def test_a_model_answers_at_the_routes_that_it_names_and_at_no_other(server):
    """Each of the documented routes, asked of each model with the route's own example."""
    _, document = server.ask("/openapi.json")
    shapes = document["components"]["schemas"]
    bodies = {}
    for path, methods in document["paths"].items():
        if path.startswith("/v1/") and path != "/v1/embeddings" and "post" in methods:
            content = methods["post"]["requestBody"]["content"]["application/json"]
            name = content["schema"]["$ref"].rpartition("/")[2]
            bodies[path] = shapes[name]["examples"][0]
    bodies["/v1/decode"] = {"ids": [1]}  # small vocabularies
    pairs = {"inputs": {"text": "a", "text_pair": "b"}}
    assert len(bodies) > 8
    for name, model in server.engine.models.items():
        answered = set()
        for path, body in bodies.items():
            if reads_pairs(model) and path in ("/v1/classify", "/v1/explain"):
                body = pairs
            status, content = server.ask(path, {**body, "model": name})
            if status == 200:
                answered.add(path)
            else:
                assert (status, content["title"]) == (422, "Wrong model"), (name, path, content)
        assert answered == set(routes_of(model)), name


def test_who_reads_pairs(server):
    found = {name: reads_pairs(each) for name, each in server.engine.models.items()}
    assert found["paraphrase"] is True and found["sentiment"] is False
    assert found["encoder"] is found["entities"] is found["answers"] is None
