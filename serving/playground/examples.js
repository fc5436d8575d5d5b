// The example in a model's folder, which /info returns, as an example of a form.

/** A list with the model's example, empty if it has none of these kinds. */
export function ownExample(model, kinds, valuesOf) {
  const { example } = model;
  if (!example || !kinds.includes(example.kind)) return [];
  return [{ name: "From the model's data", values: valuesOf(example.inputs) }];
}

/** The model's example, which fits what it was trained on; general ones if it has none. */
export function ownOr(model, kinds, valuesOf, general) {
  const own = ownExample(model, kinds, valuesOf);
  return own.length ? own : general;
}
