#include "state.h"

namespace kern::serve {
namespace {

constexpr std::string_view kHead =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta http-equiv=\"refresh\" content=\"5\"><title>{0}</title>\n<style>"
    "body{{font:14px/1.5 system-ui,sans-serif;margin:2rem;color:#222}}"
    "table{{border-collapse:collapse;margin:0 0 1.5rem}}"
    "th,td{{border-bottom:1px solid #ddd;padding:.2rem 1.2rem .2rem 0;text-align:left}}"
    "h2{{font-size:1rem;margin:.5rem 0}}</style></head>\n<body><h1>{0}</h1>\n"
    "<p>{1}{2}{3} &middot; context of {4} tokens</p>\n";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

void add_row(std::string& out, const std::vector<std::string>& cells, std::string_view tag) {
  out += "<tr>";
  for (const auto& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
  out += "</tr>\n";
}

}  // namespace

std::string status_html(const ModelInfo& model, const Health& health,
                        const std::vector<StatusTable>& tables) {
  std::string out =
      fmt::format(fmt::runtime(kHead), escaped(model.name), to_string(health.state),
                  health.reason.empty() ? "" : ": ", escaped(health.reason), model.max_model_len);
  for (const auto& table : tables) {
    out += fmt::format("<h2>{}</h2>\n<table>\n", escaped(table.title));
    add_row(out, table.columns, "th");
    for (const auto& row : table.rows) add_row(out, row, "td");
    out += "</table>\n";
  }
  return out + "</body></html>\n";
}

}  // namespace kern::serve
