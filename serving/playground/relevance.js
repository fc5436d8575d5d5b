// The page of /v1/rerank: a query and documents -> the documents by how well they answer it.

import { bars } from "./charts.js";
import { lines, text } from "./fields.js";
import { counted, score } from "./numbers.js";

const RIVERS = [
  "The Rhine rises in the Swiss Alps and ends in the North Sea.",
  "The Danube flows through ten countries, more than any other river.",
  "A cat sleeps on the sofa.",
  "Basel, Cologne and Rotterdam lie on the Rhine.",
];

export const relevance = {
  title: "Search",
  about: "Ranks documents by how well they answer a query.",
  path: "/v1/rerank",
  method: "relevance",
  positional: ["query", "documents"],
  fields: () => [
    text("query", "Query", { rows: 2 }),
    lines("documents", "Documents, one per line", { rows: 10 }),
  ],
  examples: () => [
    { name: "A river", values: { query: "Where does the Rhine rise?", documents: RIVERS } },
    { name: "Cities", values: { query: "cities on the Rhine", documents: RIVERS } },
  ],
  body: ({ query, documents }) => ({ query, documents }),
  show: ({ results }, { body }) =>
    bars(
      results.map(({ index, relevance_score: share }, rank) => ({
        name: body.documents[index],
        share,
        value: score(share),
        isBest: rank === 0,
      })),
      { "aria-label": "Documents, the most relevant first" },
    ),
  summary: ({ results }, { documents }) => {
    const [best] = results;
    const all = counted(results.length, "document");
    return best ? `Ranked ${all}; the first is “${documents[best.index]}”` : "No document";
  },
};
