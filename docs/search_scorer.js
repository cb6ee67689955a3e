/* Guides come first in the results of a search, then the gallery, the reference and measurements. */
const GUIDES = /^(index|solve|certificates|learn|train|choose|faq|limits|terms|cli|from-[a-z-]+)$/;

const weight = (page) => {
  if (GUIDES.test(page)) return 100;
  if (page === "extend") return 80;
  if (page.startsWith("gallery/")) return 60;
  if (page.startsWith("api/")) return 0;
  if (page.startsWith("results")) return -60;
  return -20;
};

var Scorer = {
  score: ([page, , , , score]) => score + weight(page),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
