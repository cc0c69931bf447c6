// Returns the texts in view whose contrast with their ground is below 4.5 to 1, as WCAG counts it. Disabled controls are exempt there.
() => {
  const parse = (colour) => {
    const parts = colour.match(/[\d.]+/g).map(Number);
    return [parts[0], parts[1], parts[2], parts[3] ?? 1];
  };
  const over = (upper, lower) => upper.slice(0, 3).map((part, index) => part * upper[3] + lower[index] * (1 - upper[3])).concat(1);
  const groundOf = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    const scheme = matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0, 1] : [255, 255, 255, 1];
    return layers.reverse().reduce((ground, layer) => over(layer, ground), scheme);
  };
  const light = (colour) => {
    const [red, green, blue] = colour.slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.nodeValue.trim() || !element.getClientRects().length || element.closest(":disabled, option, .stale, svg")) continue;
    const ground = groundOf(element);
    const [one, other] = [light(over(parse(getComputedStyle(element).color), ground)), light(ground)].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) found.add(`${contrast.toFixed(2)} ${element.tagName}.${element.className}: ${walker.currentNode.nodeValue.slice(0, 40)}`);
  }
  return [...found];
}
