#include "reader.h"

#include <algorithm>
#include <cmath>

#include "kern/base/assert.h"
#include "lines.h"

namespace kern::manifest {
namespace {

std::string key_list(std::initializer_list<Field> fields) {
  std::string out;
  for (const Field& field : fields) {
    if (!out.empty()) out += ", ";
    out += fmt::format("`{}`", field.key);
  }
  return out;
}

}  // namespace

std::string At::pointer() const {
  if (parent == nullptr) return {};
  std::string out = parent->pointer();
  out += '/';
  out += is_index ? fmt::format("{}", index) : escape_pointer(key);
  return out;
}

void Reader::wrong_type(Json json, const At& at, std::string_view expected) {
  problem(at, "expected {}, got {}", expected, json.type_name());
}

bool Reader::expect(Json json, const At& at, Json::Type type, std::string_view& out) {
  KERN_ASSERT(type == Json::Type::text);
  if (json.type() != type) {
    wrong_type(json, at, "a string");
    return false;
  }
  out = json.text();
  return true;
}

void Reader::object(Json json, const At& at, std::initializer_list<Field> fields) {
  KERN_ASSERT(fields.size() <= 32);
  if (json.type() != Json::Type::object) return wrong_type(json, at, "an object");
  uint32_t seen = 0;
  json.each_member([&](std::string_view key, Json value) {
    uint32_t bit = 1;
    const Field* field = fields.begin();
    for (; field != fields.end() && field->key != key; ++field) bit <<= 1;
    const At here = at.member(key);
    if (field == fields.end())
      return problem(here, "unknown key `{}`; expected one of {}", key, key_list(fields));
    if ((seen & bit) != 0) return problem(here, "`{}` stands twice", key);
    seen |= bit;
    need_version(here, field->since, key);
    if (field->need == Need::nullable && value.type() == Json::Type::null) return;
    field->read(value, here);
  });
  uint32_t bit = 1;
  for (const Field& field : fields) {
    if (field.need == Need::required && (seen & bit) == 0)
      problem(at, "`{}` is missing", field.key);
    bit <<= 1;
  }
}

void Reader::check_duplicates(std::vector<std::string_view>& names, const At& at) {
  std::sort(names.begin(), names.end());
  for (size_t i = 1; i < names.size(); ++i)
    if (names[i] == names[i - 1] && (i < 2 || names[i] != names[i - 2]))
      problem(at.member(names[i]), "`{}` stands twice", names[i]);
}

void Reader::named(Json json, const At& at,
                   FunctionRef<void(std::string_view, Json, const At&)> read) {
  if (json.type() != Json::Type::object) return wrong_type(json, at, "an object");
  std::vector<std::string_view> names;
  json.each_member([&](std::string_view key, Json value) {
    names.push_back(key);
    read(key, value, at.member(key));
  });
  check_duplicates(names, at);
}

bool Reader::list(Json json, const At& at, ReadValue read) {
  if (json.type() != Json::Type::array) {
    wrong_type(json, at, "a list");
    return false;
  }
  json.each_element([&](size_t i, Json value) { read(value, at.element(i)); });
  return true;
}

void Reader::list_of(Json json, const At& at, size_t count, ReadValue read) {
  const size_t problems = diagnostics_.size();
  size_t got = 0;
  const bool is_list = list(json, at, [&](Json value, const At& here) {
    if (got++ < count) read(value, here);
  });
  if (!is_list || got == count) return;
  diagnostics_.resize(problems);
  problem(at, "expected {} elements, got {}", count, got);
}

const Constant* Reader::constant(std::string_view name) const {
  if (constants_ == nullptr) return nullptr;
  for (const Constant& constant : *constants_)
    if (constant.name == name) return &constant;
  return nullptr;
}

void Reader::integer(Json json, const At& at, int64_t min, int64_t max, int64_t& out) {
  int64_t value = 0;
  if (json.type() == Json::Type::text) {
    const Constant* named = constant(json.text());
    if (named == nullptr)
      return problem(at, "expected a number, got `{}`, which names no constant", json.text());
    if (!is_whole(*named) || std::abs(named->value) > 9e15)
      return problem(at, "expected an integer, got the constant `{}` of {}", named->name,
                     named->value);
    value = static_cast<int64_t>(named->value);
  } else if (json.type() == Json::Type::integer) {
    value = json.integer();
  } else if (json.type() == Json::Type::real) {
    return problem(at, "expected an integer from {} to {}, got {}", min, max, json.real());
  } else {
    return wrong_type(json, at, "an integer");
  }
  if (value < min || value > max)
    return problem(at, "expected an integer from {} to {}, got {}", min, max, value);
  out = value;
}

void Reader::integers(Json json, const At& at, int64_t min, int64_t max,
                      std::vector<int64_t>& out) {
  list(json, at,
       [&](Json value, const At& here) { integer(value, here, min, max, out.emplace_back(min)); });
}

void Reader::real(Json json, const At& at, double& out) {
  if (json.type() == Json::Type::text) {
    const Constant* named = constant(json.text());
    if (named == nullptr)
      return problem(at, "expected a number, got `{}`, which names no constant", json.text());
    out = named->value;
  } else if (json.type() == Json::Type::integer || json.type() == Json::Type::real) {
    out = json.real();
  } else {
    wrong_type(json, at, "a number");
  }
}

void Reader::boolean(Json json, const At& at, bool& out) {
  if (json.type() != Json::Type::boolean) return wrong_type(json, at, "true or false");
  out = json.boolean();
}

void Reader::text(Json json, const At& at, std::string& out) {
  std::string_view view;
  if (expect(json, at, Json::Type::text, view)) out = view;
}

void Reader::texts(Json json, const At& at, std::vector<std::string>& out) {
  list(json, at, [&](Json value, const At& here) { text(value, here, out.emplace_back()); });
}

void Reader::shape(Json json, const At& at, std::vector<Dim>& out) {
  list(json, at, [&](Json value, const At& here) {
    Dim& dim = out.emplace_back();
    if (value.type() == Json::Type::text && constant(value.text()) == nullptr)
      dim.var = value.text();
    else
      integer(value, here, 0, kIntMax, dim.value);
  });
}

void Reader::expr(Json json, const At& at, Expr& out) {
  if (json.type() == Json::Type::text && constant(json.text()) == nullptr) {
    out = Expr::of_var(std::string(json.text()));
    return;
  }
  if (json.type() != Json::Type::object) return integer(json, at, 0, kIntMax, out.value);
  int forms = 0;
  const auto with_constant = [&](Expr::Op op) {
    return [this, &out, &forms, op](Json value, const At& here) {
      ++forms;
      out.op = op;
      out.operands.resize(1);
      size_t i = 0;
      list_of(value, here, 2, [&](Json part, const At& there) {
        if (i++ == 0) return expr(part, there, out.operands[0]);
        integer(part, there, 0, kIntMax, out.value);
      });
    };
  };
  const auto sum = [&](Json value, const At& here) {
    ++forms;
    out.op = Expr::Op::add;
    out.operands.resize(2);
    size_t i = 0;
    list_of(value, here, 2,
            [&](Json part, const At& there) { expr(part, there, out.operands[i++]); });
  };
  const auto mul = with_constant(Expr::Op::mul), ceil_div = with_constant(Expr::Op::ceil_div);
  object(json, at,
         {{"mul", Need::optional, mul},
          {"add", Need::optional, sum},
          {"ceil_div", Need::optional, ceil_div}});
  if (forms != 1)
    problem(at, "expected one of `mul`, `add`, `ceil_div` in an expression, got {}", forms);
}

}  // namespace kern::manifest
