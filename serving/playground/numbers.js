// Numbers -> words.

/** A score as the API gives it, to three digits. */
export function score(value) {
  return value.toFixed(3).replace("-", "−");
}

/** A number of any size, to four digits. */
export function plain(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const digits =
    size >= 1e5 || size < 1e-3 ? value.toExponential(2) : `${Number(value.toPrecision(4))}`;
  return digits.replaceAll("-", "−");
}

/** With its sign: a colour is never the only one to say it. */
export function signed(value, digits = 2) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}

/** "1 token", "2 tokens". */
export function counted(number, word, words = `${word}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? word : words}`;
}

/** How long something took. */
export function duration(seconds) {
  return seconds < 1 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : `${seconds.toFixed(2)} s`;
}
