(() => {
  "use strict"
  const link = state => document.documentElement.dataset.link = state
  let stream, timer

  // Makes the node a like b, and keeps what is the same: so a selection stays, and what was opened stays open.
  const patch = (a, b) => {
    if (a.nodeName !== b.nodeName) return a.replaceWith(b)
    if (!b.attributes) return a.data === b.data || (a.data = b.data)
    for (const { name } of [...a.attributes]) if (name !== "open" && !b.hasAttribute(name)) a.removeAttribute(name)
    for (const { name, value } of b.attributes) if (a.getAttribute(name) !== value) a.setAttribute(name, value)
    const [old, now] = [[...a.childNodes], [...b.childNodes]]
    old.slice(now.length).forEach(n => n.remove())
    now.forEach((n, i) => old[i] ? patch(old[i], n) : a.append(n))
  }
  const show = html => {
    const main = document.querySelector("main")
    const next = new DOMParser().parseFromString(html, "text/html")
    patch(main, next.querySelector("main"))
    link("live")
  }

  const after = (ms, f) => { clearTimeout(timer); timer = setTimeout(f, ms) }
  const connect = () => {
    if (document.hidden) return
    stream?.close()
    stream = new EventSource("events")
    stream.onmessage = e => { show("<main>" + e.data + "</main>"); after(5000, poll) }
    stream.onerror = poll
    after(5000, poll)
  }
  // Where no stream gets through, the page itself is fetched before the next try.
  const poll = async () => {
    stream.close()
    after(2000, connect)
    try {
      const page = await fetch("", { cache: "no-store", signal: AbortSignal.timeout(1900) })
      if (!page.ok) throw page.status
      show(await page.text())
    } catch {
      link("lost")
    }
  }
  addEventListener("visibilitychange", () => {
    if (document.hidden) { stream.close(); clearTimeout(timer) } else connect()
  })
  connect()
})()
