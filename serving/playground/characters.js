// Texts as the API counts them: a character is a Unicode code point, not a UTF-16 unit. An emoji is
// one character here and two in JavaScript's own strings.

/** The characters of a text. */
export function charactersOf(text) {
  return Array.from(text);
}

/**
 * A text cut at spans `{start, end}` of characters, in order: pieces `{text, span}`, of which those
 * between spans have the span null. A span that overlaps one before it is left out.
 */
export function pieces(text, spans) {
  const characters = charactersOf(text);
  const found = [];
  let done = 0;
  const add = (start, end, span) => {
    if (end > start) found.push({ text: characters.slice(start, end).join(""), span });
  };
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < done) continue;
    add(done, span.start, null);
    add(span.start, span.end, span);
    done = span.end;
  }
  add(done, characters.length, null);
  return found;
}
