// PAGES: [name, path, title, words]; every word asked for has to begin one of a page
const box = document.querySelector("input[name=q]")
const hits = document.getElementById("hits")
const told = document.getElementById("told")

function rank([name, , title, words], asked) {
  const heading = ` ${name.toLowerCase().replaceAll("_", " ")} ${name.toLowerCase()} ${title.toLowerCase()}`
  const text = ` ${words}`
  let sum = 0
  for (const word of asked) {
    if (heading.includes(` ${word}`)) sum += 10
    else if (text.includes(` ${word}`)) sum += 1
    else return 0
  }
  return sum
}

function search() {
  const asked = box.value.toLowerCase().split(/\s+/).filter(Boolean)
  hits.replaceChildren()
  if (!asked.length) return
  const found = PAGES.map((page) => [rank(page, asked), page]).filter(([sum]) => sum)
  found.sort((one, other) => other[0] - one[0])
  for (const [, [name, path, title]] of found) {
    const link = document.createElement("a")
    link.href = path
    link.textContent = name
    const line = document.createElement("li")
    line.append(link, ` ${title}`)
    hits.append(line)
  }
  told.textContent = found.length === 1 ? "1 page" : `${found.length} pages`
}

box.value = new URLSearchParams(location.search).get("q") ?? ""
box.addEventListener("input", search)
search()
